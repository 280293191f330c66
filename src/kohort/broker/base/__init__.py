"""What every part of the broker builds on: configuration, environment, requests.

Imports `broker.log`, and no other folder of the broker.
"""
