// One event stream for all tabs of this browser. A tab that comes later gets the last sample's number;
// an empty one says that the console does not answer.
"use strict";
const ports = new Set();
const source = new EventSource("/events");
let last = null;
function tell(number) {
  last = number;
  for (const port of ports) port.postMessage(last);
}
for (const name of ["hello", "sample"]) source.addEventListener(name, (event) => tell(event.data));
source.addEventListener("error", () => tell(""));
self.onconnect = (event) => {
  const port = event.ports[0];
  ports.add(port);
  port.start();
  if (last !== null) port.postMessage(last);
};
