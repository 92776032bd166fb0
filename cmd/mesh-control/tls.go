package main

import (
	"crypto/tls"
	"net"

	mesh "github.com/meshctl/mesh"
)

// loadCertificate reads the repository's certificate; nil when none is configured.
func loadCertificate(c config) (*tls.Certificate, error) {
	if c.certificate == "" && c.certificateKey == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(c.certificate, c.certificateKey)
	if err != nil {
		return nil, mesh.Errorf(mesh.CodeInvalid, "the certificate of the repository cannot be used: %w; see repository_tls_certificate and repository_tls_key", err)
	}
	return &pair, nil
}

// secure puts TLS around a listener, when there is a certificate.
func secure(l net.Listener, certificate *tls.Certificate) net.Listener {
	if certificate == nil {
		return l
	}
	return tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{*certificate}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
}
