package pkg

// refusal is a job that cannot be done, and why.
type refusal struct {
	job job
	err error
}

// settle finds the jobs that can be done together. It tries all at once, and
// only when that is refused looks for the ones at fault by halving, so that one
// bad package among many costs few trials. A job that fails by itself but works
// together with the others, because it needs one of them, is kept.
func settle(jobs []job, trial func([]job) error) ([]job, []refusal) {
	if len(jobs) == 0 {
		return nil, nil
	}
	err := trial(jobs)
	if err == nil {
		return jobs, nil
	}
	if len(jobs) == 1 || passing(err) {
		refused := make([]refusal, len(jobs))
		for i, j := range jobs {
			refused[i] = refusal{j, err}
		}
		return nil, refused
	}
	half := len(jobs) / 2
	left, refused := settle(jobs[:half], trial)
	right, more := settle(jobs[half:], trial)
	refused = append(refused, more...)

	accepted := left
	if len(left) == 0 || len(right) == 0 || trial(join(left, right...)) == nil {
		accepted = join(left, right...)
	} else {
		// Each half works and both do not: the earlier ones win, one by one.
		for _, j := range right {
			if err := trial(join(accepted, j)); err != nil {
				refused = append(refused, refusal{j, err})
				continue
			}
			accepted = join(accepted, j)
		}
	}
	if len(accepted) == 0 {
		return nil, refused
	}
	var still []refusal
	for _, r := range refused {
		if passing(r.err) || trial(join(accepted, r.job)) != nil {
			still = append(still, r)
			continue
		}
		accepted = join(accepted, r.job)
	}
	return accepted, still
}

func join(jobs []job, more ...job) []job {
	return append(append(make([]job, 0, len(jobs)+len(more)), jobs...), more...)
}
