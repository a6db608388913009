"""The edge: REST, WebSocket, SQS, metrics and authorisation, all thin."""
