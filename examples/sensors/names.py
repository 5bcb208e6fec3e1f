"""The queues and the exchange of the pipeline."""

READINGS, EXCHANGE, AVERAGES = "sensors.readings", "sensors", "sensors.averages"
