package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// s3Bucket is a bucket of an S3-compatible server with conditional writes.
type s3Bucket struct {
	client       *s3.Client
	name, prefix string
	encryption   types.ServerSideEncryption
	kmsKey       *string
}

// These are the values of the URL's checksum parameters. A server that does not support the newer
// checksums needs when_required.
var (
	requestChecksums = map[string]aws.RequestChecksumCalculation{
		"when_supported": aws.RequestChecksumCalculationWhenSupported,
		"when_required":  aws.RequestChecksumCalculationWhenRequired,
	}
	responseChecksums = map[string]aws.ResponseChecksumValidation{
		"when_supported": aws.ResponseChecksumValidationWhenSupported,
		"when_required":  aws.ResponseChecksumValidationWhenRequired,
	}
)

// openS3 opens s3://bucket. The AWS SDK finds the credentials, and the region if the URL has no
// region.
func openS3(ctx context.Context, u *url.URL) (bucket, error) {
	b := &s3Bucket{name: u.Host}
	var load []func(*config.LoadOptions) error
	var client []func(*s3.Options)
	for name, values := range u.Query() {
		value := values[len(values)-1]
		on, notBool := strconv.ParseBool(value)
		var err error
		switch name {
		case "region":
			load = append(load, config.WithRegion(value))
		case "profile":
			load = append(load, config.WithSharedConfigProfile(value))
		case "endpoint":
			client = append(client, func(o *s3.Options) { o.BaseEndpoint = &value })
		case "use_path_style":
			err = notBool
			client = append(client, func(o *s3.Options) { o.UsePathStyle = on })
		case "request_checksum_calculation":
			client = append(client, func(o *s3.Options) { o.RequestChecksumCalculation = requestChecksums[value] })
		case "response_checksum_validation":
			client = append(client, func(o *s3.Options) { o.ResponseChecksumValidation = responseChecksums[value] })
		case "ssetype":
			b.encryption = types.ServerSideEncryption(value)
		case "kmskeyid":
			b.kmsKey = &value
		case "prefix":
			b.prefix = value
		case "disable_https":
			err = notBool
			client = append(client, func(o *s3.Options) { o.EndpointOptions.DisableHTTPS = on })
		default:
			err = errors.New("not supported")
		}
		if err != nil {
			return nil, fmt.Errorf("the parameter %s of the store is invalid: %w", name, err)
		}
	}
	loaded, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return nil, fmt.Errorf("configure the AWS SDK: %w", err)
	}
	b.client = s3.NewFromConfig(loaded, client...)
	return b, nil
}

func (b *s3Bucket) key(key string) *string { return aws.String(b.prefix + key) }

// statusOf returns the HTTP status of an error, or zero without a response.
func statusOf(err error) int {
	if response, ok := errors.AsType[*awshttp.ResponseError](err); ok {
		return response.HTTPStatusCode()
	}
	return 0
}

func (b *s3Bucket) ready(ctx context.Context) error {
	_, err := b.client.HeadBucket(ctx, &s3.HeadBucketInput{Bucket: &b.name})
	return err
}

func (b *s3Bucket) list(ctx context.Context, prefix string, visit func(entry)) error {
	pages := s3.NewListObjectsV2Paginator(b.client, &s3.ListObjectsV2Input{Bucket: &b.name, Prefix: b.key(prefix)})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, found := range page.Contents {
			key := strings.TrimPrefix(aws.ToString(found.Key), b.prefix)
			visit(entry{key: key, size: aws.ToInt64(found.Size), version: aws.ToString(found.ETag)})
		}
	}
	return nil
}

func (b *s3Bucket) open(ctx context.Context, key string, offset int64) (*object, error) {
	input := &s3.GetObjectInput{Bucket: &b.name, Key: b.key(key)}
	if offset > 0 {
		input.Range = aws.String(fmt.Sprintf("bytes=%d-", offset))
	}
	found, err := b.client.GetObject(ctx, input)
	var none *types.NoSuchKey
	switch {
	case errors.As(err, &none):
		return nil, errNotFound
	case err != nil:
		return nil, err
	}
	size := offset + aws.ToInt64(found.ContentLength)
	return &object{ReadCloser: found.Body, size: size, version: aws.ToString(found.ETag)}, nil
}

func (b *s3Bucket) put(ctx context.Context, key, contentType string, content []byte, when condition) error {
	input := &s3.PutObjectInput{Bucket: &b.name, Key: b.key(key), ContentType: &contentType,
		Body: bytes.NewReader(content), ServerSideEncryption: b.encryption, SSEKMSKeyId: b.kmsKey}
	if when.absent {
		input.IfNoneMatch = aws.String("*")
	}
	if when.version != "" {
		input.IfMatch = &when.version
	}
	_, err := b.client.PutObject(ctx, input)
	switch status := statusOf(err); {
	case status == http.StatusPreconditionFailed, status == http.StatusConflict,
		status == http.StatusNotFound && when.version != "": // the object was deleted
		return fmt.Errorf("%w: %w", errChanged, err)
	}
	return err
}

func (b *s3Bucket) remove(ctx context.Context, key string) error {
	_, err := b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.name, Key: b.key(key)})
	return err
}

func (b *s3Bucket) removeAll(ctx context.Context, uid string) error {
	var keys []string
	if err := b.list(ctx, uid+"/", func(found entry) { keys = append(keys, found.key) }); err != nil {
		return err
	}
	for _, key := range keys {
		if err := b.remove(ctx, key); err != nil {
			return err
		}
	}
	return nil
}
