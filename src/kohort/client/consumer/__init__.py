"""The consumer: its public face, its calls, and the shell around the plans in `plan`.

Imports `client.cluster`, `client.common` and `group.member`.
"""
