// One event stream for all tabs of this browser.
"use strict";
const ports = new Set();
const source = new EventSource("/events");
source.addEventListener("sample", (event) => {
  for (const port of ports) port.postMessage(event.data);
});
self.onconnect = (event) => { ports.add(event.ports[0]); event.ports[0].start(); };
