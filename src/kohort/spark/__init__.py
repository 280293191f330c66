"""kohort.spark"""
