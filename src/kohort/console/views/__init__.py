"""What each screen shows, as frozen dataclasses: templates and JSON read the same objects.

Pure. Imports `kohort.observe` and descriptions of `kohort.client`.
"""
