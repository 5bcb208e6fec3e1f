from amqp_server.mqctl.main import main

main()
