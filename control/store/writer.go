package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/internal/sqlite"
)

const (
	// groupLimit bounds how many writes share one commit.
	groupLimit = 256
	// internedLimit bounds how many names of resources are kept in memory.
	internedLimit = 100_000
	// crowdedAfter is how many names of resources are made before a sweep is due
	// at once, and namesWorth how many before one looks for those that nothing
	// refers to any more.
	crowdedAfter = 50_000
	namesWorth   = 1000
)

// ErrClosed: the store was closed.
var ErrClosed = errors.New("the store is closed")

// writer is the one goroutine that writes. Writes that wait at the same time
// are committed together, which costs one sync of the disk for all of them;
// each keeps its own savepoint, so that one that fails leaves nothing behind
// and does not disturb the others.
type writer struct {
	jobs chan *job
	// alone brings what has the connection for itself, outside of a transaction.
	alone chan *job
	stop  chan struct{}
	done  chan struct{}
	once  sync.Once
	err   error
	// crowded is signalled when a sweep is due. It coalesces.
	crowded chan struct{}

	// These belong to the goroutine.
	conn  *sql.Conn
	stmts map[string]*sql.Stmt
	// nodes and resources hold the ids of names; they are cleared when a write
	// is undone.
	nodes     map[string]int64
	resources map[string]int64
	// made counts the names of resources that were made since the last sweep. It
	// begins with so many that the first sweep of every start looks at them.
	made int
	// used holds the ids of names that were used since a sweep began to look for
	// those that nothing has. Nil: none looks.
	used map[int64]struct{}
}

type job struct {
	ctx  context.Context
	do   func(*writer) error
	err  error
	done chan struct{}
}

func newWriter(ctx context.Context, db *sql.DB) (*writer, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("open the writing connection: %w", err)
	}
	w := &writer{
		jobs:  make(chan *job, groupLimit),
		alone: make(chan *job),
		stop:  make(chan struct{}),
		done:  make(chan struct{}),
		conn:  conn,
		stmts: make(map[string]*sql.Stmt),
		nodes: make(map[string]int64),

		resources: make(map[string]int64),
		crowded:   make(chan struct{}, 1),
		made:      namesWorth,
	}
	go w.run()
	return w, nil
}

func (w *writer) close() error {
	w.once.Do(func() { close(w.stop) })
	<-w.done
	return w.err
}

// write runs do inside a transaction and returns after the commit. A ctx that
// ends before do began makes it an error, and nothing is written. From then on
// nobody waits for longer than the disk takes, and what it returns is so: a
// caller that gave up half way would not know what its store holds.
func (s *Store) write(ctx context.Context, do func(*writer) error) error {
	return s.hand(ctx, s.writer.jobs, do)
}

// writeAlone is write for what begins and ends its transaction itself.
func (s *Store) writeAlone(ctx context.Context, do func(*writer) error) error {
	return s.hand(ctx, s.writer.alone, do)
}

func (s *Store) hand(ctx context.Context, to chan<- *job, do func(*writer) error) error {
	j := &job{ctx: ctx, do: do, done: make(chan struct{})}
	select {
	case to <- j:
	case <-s.writer.stop:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-j.done:
		return j.err
	case <-s.writer.done:
		// The writer has ended: either it did the job before, or nobody will.
		select {
		case <-j.done:
			return j.err
		default:
			return ErrClosed
		}
	}
}

func (w *writer) run() {
	defer close(w.done)
	for {
		select {
		case j := <-w.jobs:
			w.group(j)
		case j := <-w.alone:
			j.err = room(j.do(w))
			close(j.done)
		case <-w.stop:
			for {
				select {
				case j := <-w.jobs:
					w.group(j)
				default:
					for _, stmt := range w.stmts {
						w.err = errors.Join(w.err, stmt.Close())
					}
					w.err = errors.Join(w.err, w.conn.Close())
					return
				}
			}
		}
	}
}

// group runs the first job and whatever waits behind it in one transaction.
func (w *writer) group(first *job) {
	jobs := []*job{first}
	for len(jobs) < groupLimit {
		select {
		case j := <-w.jobs:
			jobs = append(jobs, j)
			continue
		default:
		}
		break
	}
	err := w.transaction(jobs)
	for _, j := range jobs {
		if err != nil && j.err == nil {
			j.err = err
		}
		j.err = room(j.err)
		close(j.done)
	}
	if w.made >= crowdedAfter {
		// A sweep that fails is not asked for again with every write.
		w.made = namesWorth
		select {
		case w.crowded <- struct{}{}:
		default:
		}
	}
}

// room gives the sentence for an operator to an error that says that nothing can
// be written now, and leaves any other as it is.
func room(err error) error {
	switch {
	case sqlite.IsFull(err):
		return &mesh.Error{Code: mesh.CodeUnavailable, Message: "the disk of the control plane is full, so nothing was written; make room there, then ask again", Err: err}
	case sqlite.CannotWrite(err):
		return &mesh.Error{Code: mesh.CodeUnavailable, Message: fmt.Sprintf("what the control plane keeps cannot be written (%v), so nothing was; look at its disk and at `journalctl -u mesh-control`, then ask again", cause(err)), Err: err}
	}
	return err
}

// cause is the innermost error: what the system said.
func cause(err error) error {
	for {
		next := errors.Unwrap(err)
		if joined, ok := err.(interface{ Unwrap() []error }); ok && len(joined.Unwrap()) > 0 {
			next = joined.Unwrap()[0]
		}
		if next == nil {
			return err
		}
		err = next
	}
}

func (w *writer) transaction(jobs []*job) error {
	if err := w.exec("BEGIN IMMEDIATE"); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	for _, j := range jobs {
		if j.ctx.Err() != nil {
			j.err = j.ctx.Err()
			continue
		}
		if err := w.exec("SAVEPOINT one"); err != nil {
			return errors.Join(fmt.Errorf("begin one write: %w", err), w.undo())
		}
		if j.err = j.do(w); j.err != nil {
			w.forget()
			if err := w.exec("ROLLBACK TO one"); err != nil {
				// SQLite has undone the whole transaction; what it said first is why.
				return errors.Join(j.err, fmt.Errorf("undo one write: %w", err), w.undo())
			}
		}
		if err := w.exec("RELEASE one"); err != nil {
			return errors.Join(fmt.Errorf("end one write: %w", err), w.undo())
		}
	}
	if err := w.exec("COMMIT"); err != nil {
		return errors.Join(fmt.Errorf("commit: %w", err), w.undo())
	}
	return nil
}

// undo rolls the whole transaction back. SQLite may have done so already.
func (w *writer) undo() error {
	w.forget()
	err := w.exec("ROLLBACK")
	if err != nil && w.idle() {
		return nil
	}
	return err
}

// idle reports whether no transaction is open.
func (w *writer) idle() bool {
	if err := w.exec("BEGIN IMMEDIATE"); err != nil {
		return false
	}
	return w.exec("ROLLBACK") == nil
}

func (w *writer) forget() {
	clear(w.nodes)
	clear(w.resources)
}

// stmt prepares a statement once. The transaction is not bound to a ctx: a
// caller that goes away must not take the writes of others with it.
func (w *writer) stmt(query string) (*sql.Stmt, error) {
	if stmt, prepared := w.stmts[query]; prepared {
		return stmt, nil
	}
	stmt, err := w.conn.PrepareContext(context.Background(), query)
	if err != nil {
		return nil, fmt.Errorf("prepare %q: %w", query, err)
	}
	w.stmts[query] = stmt
	return stmt, nil
}

func (w *writer) exec(query string, args ...any) error {
	_, err := w.result(query, args...)
	return err
}

func (w *writer) result(query string, args ...any) (sql.Result, error) {
	stmt, err := w.stmt(query)
	if err != nil {
		return nil, err
	}
	return stmt.ExecContext(context.Background(), args...)
}

// row reads one row into dest; sql.ErrNoRows when there is none.
func (w *writer) row(query string, args []any, dest ...any) error {
	stmt, err := w.stmt(query)
	if err != nil {
		return err
	}
	return stmt.QueryRowContext(context.Background(), args...).Scan(dest...)
}

// nodeID returns the id of a node; control.ErrNotFound when there is none.
func (w *writer) nodeID(name string) (int64, error) {
	if id, known := w.nodes[name]; known {
		return id, nil
	}
	var id int64
	err := w.row("SELECT id FROM nodes WHERE name = ?", []any{name}, &id)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, fmt.Errorf("node %s: %w", name, control.ErrNotFound)
	}
	if err != nil {
		return 0, fmt.Errorf("look up node: %w", err)
	}
	w.nodes[name] = id
	return id, nil
}

// knownResource returns the id of the name of a resource, if it has one.
func (w *writer) knownResource(name string) (id int64, known bool, err error) {
	if id, known := w.resources[name]; known {
		return id, true, nil
	}
	err = w.row("SELECT id FROM resources WHERE name = ?", []any{name}, &id)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("look up the name of a resource: %w", err)
	}
	return id, true, nil
}

// resourceID returns the id of the name of a resource, which it makes.
func (w *writer) resourceID(name string) (int64, error) {
	id, known, err := w.knownResource(name)
	if err != nil {
		return 0, err
	}
	if !known {
		result, err := w.result("INSERT INTO resources (name) VALUES (?)", name)
		if err == nil {
			id, err = result.LastInsertId()
		}
		if err != nil {
			return 0, fmt.Errorf("intern the name of a resource: %w", err)
		}
		w.made++
	}
	if w.used != nil {
		w.used[id] = struct{}{}
	}
	if len(w.resources) >= internedLimit {
		clear(w.resources)
	}
	w.resources[name] = id
	return id, nil
}

// inOrder reports whether a message has its place after those that are
// recorded, and records that.
func (w *writer) inOrder(node int64, seq control.Sequence) (bool, error) {
	if seq.Number == 0 {
		return true, nil
	}
	result, err := w.result(`INSERT INTO sequences (node, store, number, began) VALUES (?1, ?2, ?3, (SELECT coalesce(max(began), 0) + 1 FROM sequences WHERE node = ?1))
		ON CONFLICT (node, store) DO UPDATE SET number = excluded.number WHERE excluded.number > number`, node, seq.StoreID, int64(seq.Number))
	if err != nil {
		return false, fmt.Errorf("record the place of a message: %w", err)
	}
	changed, err := result.RowsAffected()
	return changed > 0, err
}
