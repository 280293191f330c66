"""`kohort acl`."""
