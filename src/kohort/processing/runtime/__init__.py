"""The shell of an App: consumer, producer and store around the engine."""
