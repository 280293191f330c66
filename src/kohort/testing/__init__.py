"""kohort.testing"""
