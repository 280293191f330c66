"""`App`: handlers with workers, retries and safe commits (spec 4.12, 5).

`engine` < `workers` < `runtime` < `app`; each imports only folders to its left.
"""
