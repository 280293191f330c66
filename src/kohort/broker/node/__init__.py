"""One broker node's life, and the nodes of a process."""
