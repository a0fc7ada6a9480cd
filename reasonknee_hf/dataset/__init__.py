"""What every dataset of questions about volumes needs: records, shards, index, streams, builder, registration."""
