"""`kohort verifiable-consumer` and `verifiable-producer`."""
