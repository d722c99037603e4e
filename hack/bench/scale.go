package main

import "context"

func scale(ctx context.Context, b *bed, o options, r *report) error { return nil }
