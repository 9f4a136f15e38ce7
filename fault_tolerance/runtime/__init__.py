"""What runs under a live backend: membership, communicators between groups, the fork server, failure injection."""
