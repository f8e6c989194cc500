"""The wire between real processes: collectives over c10d process groups, messages over sockets."""
