"""Consumer groups as pure machines: the coordinator's side and the member's side."""
