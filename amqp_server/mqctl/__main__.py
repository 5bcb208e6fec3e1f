"""`python -m amqp_server.mqctl`."""

from amqp_server.mqctl.main import main

main()
