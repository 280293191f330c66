"""The producer: its public face, transactions, and the shell around the plans in `plan`.

A record: `plan.fast_send` or `core` adds it to a batch of `plan.accumulator`; `plan.sender` gives
the batch its sequence, retries and completes it; `outgoing` sends the request.
Imports `client.cluster` and `client.common`.
"""
