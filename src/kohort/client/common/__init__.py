"""What all clients share: configuration, argument checks, futures, public types.

Imports no other folder of the client.
"""
