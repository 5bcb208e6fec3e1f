// A form that publishes one message.

import {exchangePart, post} from "./api.js";
import {form} from "./dialog.js";
import {done} from "./notice.js";

export function publishForm(vhost, exchange, routingKey, published) {
  const fields = [
    {name: "routing_key", label: "Routing key", value: routingKey},
    {name: "payload", label: "Payload", type: "textarea", rows: 6},
    {name: "base64", label: "the payload is typed in Base64", type: "checkbox"},
    {name: "persistent", label: "persistent", type: "checkbox", value: true},
    {
      name: "properties",
      label: "Properties",
      type: "json",
      help: 'Such as {"content_type": "text/plain", "headers": {"kind": "a"}}',
    },
  ];
  form("Publish a message", fields, "Publish", async (values) => {
    const told = await post(["exchanges", vhost, exchangePart(exchange), "publish"], {
      routing_key: values.routing_key,
      payload: values.payload,
      payload_encoding: values.base64 ? "base64" : "string",
      properties: {delivery_mode: values.persistent ? 2 : 1, ...values.properties},
    });
    if (!told.routed) throw new Error("No queue got the message: nothing is bound with this key.");
    done("The message was published.");
    published();
  });
}
