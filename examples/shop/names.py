"""The two super streams of the pipeline: what comes, and the table that is made of it."""

ORDERS, REVENUE = "shop.orders", "shop.revenue"
ORDERS_PARTITIONS, REVENUE_PARTITIONS = 3, 2
