"""`kohort verifiable-consumer` and `verifiable-producer`: Kafka's test tools by their events.

Imports `kohort.cli.common` and what it shows, no other command.
"""
