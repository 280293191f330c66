"""A simulated system of the code that ships, in virtual time.

The broker is `BrokerState`, `Nodes` and `ClientConnection`, unchanged, over simulated files; its
clients are the real ones over a simulated network. Only the ports below them are simulated
(`Files`, `Env`, connections). It may import everything of `kohort.simulator`, `kohort.broker` and
`kohort.client`.
"""
