"""kohort.retry"""
