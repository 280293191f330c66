"""The shell of an App: consumer, producer and store around the engine.

`runner` is the loop: poll, dispatch, commit. `publishing` produces copies and what handlers send;
`transactor` and its two kinds commit exactly-once batches to Kafka or to a store.
"""
