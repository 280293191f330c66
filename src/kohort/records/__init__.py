"""kohort.records"""
