package controllers

import (
	"github.com/postrider/postrider/store"
)

// identity says what an object is to the row of its name.
type identity int

const (
	// unheard: there is no live row; the object gets a new one.
	unheard identity = iota
	// current: the row is this object's.
	current
	// adopts: the row is that of an object which nobody saw deleted, in the same namespace: the cluster was restored
	// from a backup. The row becomes this object's, with its backlog.
	adopts
	// replaces: the row is that of an object in an earlier namespace of this name, perhaps of somebody else. It is
	// tombstoned, and the object gets a new one that sees nothing of it.
	replaces
)

// identify decides on a live row, nil if there is none, and an object by its uid and its namespace's. That rows of
// objects whose deletion was seen are tombstoned already is the caller's affair.
func identify(row *store.Endpoint, uid, namespaceUID string) identity {
	switch {
	case row == nil:
		return unheard
	case row.UID == uid:
		return current
	case row.NamespaceUID == namespaceUID || row.Adoptable:
		return adopts
	}
	return replaces
}
