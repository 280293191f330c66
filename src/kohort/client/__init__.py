"""The clients: `Consumer`, `Producer`, `Admin`, and their async forms.

`common` < `cluster` < `consumer`, `producer`, `admin`; each imports only folders to its left.
Folders named `plan` hold decisions without sockets, threads or clocks.
"""
