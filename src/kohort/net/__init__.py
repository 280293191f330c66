"""kohort.net"""
