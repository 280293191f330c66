"""kohort.group"""
