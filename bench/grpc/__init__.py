"""The gRPC door against a bare grpcio server, both through Danube's client."""
