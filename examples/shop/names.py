"""The two super streams of the pipeline: the orders, and the table that is made from them."""

ORDERS, REVENUE = "shop.orders", "shop.revenue"
ORDERS_PARTITIONS, REVENUE_PARTITIONS = 3, 2
