"""kohort.broker"""
