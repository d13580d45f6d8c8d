"""Two coordinators of one cluster behind HAProxy, and what it costs to lose one."""
