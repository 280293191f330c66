"""The web console: `kohort console`, and `kohort broker run --console`.

`views` (pure: overview and query in, what a screen shows out) < `screens` (ask the cluster, carry
out actions) < `web` (HTTP, templates, sessions). Imports `kohort.observe`, `kohort.sampling`,
`kohort.retry`, `kohort.client`; only the command line imports it. Needs the extra `console`.
"""
