"""kohort.wire"""
