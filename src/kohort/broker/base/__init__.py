"""What every part of the broker builds on: configuration, environment, requests."""
