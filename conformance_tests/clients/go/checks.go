package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"time"
)

// The framework of the program: named checks, one line each, and the broker's restart.

const (
	programTime = 230 * time.Second
	waitTime    = 40 * time.Second
	restartTime = 130 * time.Second
)

var (
	amqpURL    = environment("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")
	httpURL    = environment("HTTP_URL", "http://guest:guest@127.0.0.1:15672")
	restartCmd = environment("RESTART_CMD", "")
	groups     = environment("CONSUMER_GROUPS", "")
	prefix     = "clients.go." + randomHex()
)

func environment(key, fallback string) string {
	if value := os.Getenv(key); value != "" {
		return value
	}
	return fallback
}

func randomHex() string {
	bytes := make([]byte, 4)
	if _, err := rand.Read(bytes); err != nil {
		panic(err)
	}
	return hex.EncodeToString(bytes)
}

func name(noun string) string { return prefix + "." + noun }

// failure is the value with which a check panics: so checks need no error handling.
type failure struct{ reason string }

func fail(format string, values ...any) { panic(failure{fmt.Sprintf(format, values...)}) }

func ok(err error, what string) {
	if err != nil {
		fail("%s: %v", what, err)
	}
}

func must[T any](value T, err error) T {
	ok(err, fmt.Sprintf("%T", value))
	return value
}

func equal(got, want any, what string) {
	if !reflect.DeepEqual(got, want) {
		fail("%s: got %#v, want %#v", what, got, want)
	}
}

func contains(text, part string) {
	if !strings.Contains(text, part) {
		fail("%q not in %q", part, text)
	}
}

func receive[T any](from <-chan T, what string) T {
	select {
	case value, open := <-from:
		if !open {
			fail("closed: %s", what)
		}
		return value
	case <-time.After(waitTime):
		fail("timed out: %s", what)
	}
	panic("unreachable")
}

type check struct {
	title        string
	work         func()
	needsRestart bool
	needsGroups  bool
}

type tally struct{ passed, failed int }

func (t *tally) run(one check) {
	if one.needsRestart && restartCmd == "" {
		fmt.Printf("skip %s RESTART_CMD is not set\n", one.title)
		return
	}
	if one.needsGroups && groups == "" {
		fmt.Printf("skip %s CONSUMER_GROUPS is not set\n", one.title)
		return
	}
	defer func() {
		if reason := recover(); reason != nil {
			t.failed++
			if expected, isFailure := reason.(failure); isFailure {
				reason = expected.reason
			}
			fmt.Printf("FAIL %s %s\n", one.title, strings.Join(strings.Fields(fmt.Sprint(reason)), " "))
			return
		}
		t.passed++
		fmt.Printf("ok %s\n", one.title)
	}()
	one.work()
}

func (t *tally) finish() int {
	fmt.Printf("%d passed, %d failed\n", t.passed, t.failed)
	if t.failed > 0 || t.passed == 0 {
		return 1
	}
	return 0
}

func restartBroker() {
	limit, cancel := context.WithTimeout(context.Background(), restartTime)
	defer cancel()
	output, err := exec.CommandContext(limit, "/bin/sh", "-c", restartCmd).CombinedOutput()
	if err != nil {
		fail("RESTART_CMD: %v: %s", err, output)
	}
}
