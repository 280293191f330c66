// One event stream for all tabs of this browser. A tab that comes later gets the last sample's number.
"use strict";
const ports = new Set();
const source = new EventSource("/events");
let last = null;
function tell(event) {
  last = event.data;
  for (const port of ports) port.postMessage(last);
}
source.addEventListener("hello", tell);
source.addEventListener("sample", tell);
self.onconnect = (event) => {
  const port = event.ports[0];
  ports.add(port);
  port.start();
  if (last !== null) port.postMessage(last);
};
