"""A/B of fault-tolerance methods: live rows under one failure trace, and the simulator on the same trace."""
