"""The clients: `Consumer`, `Producer`, `Admin`, and their async forms.

`common` < `cluster` < `consumer`, `producer`, `admin`; each imports only what stands left of it.
Folders named `plan` hold decisions without sockets, threads or clocks.
"""
