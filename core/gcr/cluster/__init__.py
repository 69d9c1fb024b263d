"""Jobs over several machines. Each has its own daemon; another program carries requests to it, such as Ray's actors."""
