"""What can be seen of SQL and DDL without Spark."""
