"""What a broker process keeps: topics, partitions, leadership, quotas, fetch sessions."""
